"""`iptables` and `ip6tables` of an emulated machine: no effect, since it shares the host's network.

Its metadata server refuses processes of other Unix users by itself.
"""
