"""Google Cloud by its own clients: inventory, groups, notices, prices, objects."""

import warnings

# what Google plans for a Python of next year is nothing that a user of today can act on
warnings.filterwarnings("ignore", message="You are using a Python version", category=FutureWarning)
