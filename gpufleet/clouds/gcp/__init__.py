"""Google Cloud clients: inventory, groups, prices, objects."""

import warnings

# users cannot act on Google's announcements about future Python versions
warnings.filterwarnings("ignore", message="You are using a Python version", category=FutureWarning)
