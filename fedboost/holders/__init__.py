"""The holders of rows: parties with whole rows, and parties with some columns of them."""
