"""GPU instances outside every pool: listed and priced; marked or stopped only where a rule names them."""
