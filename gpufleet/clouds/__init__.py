"""Access to the APIs of AWS and Google Cloud, through their own client libraries."""
