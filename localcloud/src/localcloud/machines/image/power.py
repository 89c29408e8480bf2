"""`poweroff` and `shutdown` of an emulated machine: the machine ends, and its cloud sees it."""

import sys

from localcloud.machines.image.systemctl import ask

if __name__ == "__main__":
    sys.exit(int(ask({"verb": "poweroff"})["code"]))
