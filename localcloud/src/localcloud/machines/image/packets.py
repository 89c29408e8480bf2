"""`iptables` and `ip6tables` of an emulated machine: it shares the network of whoever started it, so no rule is made.

Its metadata server refuses processes of other Unix users by itself.
"""
