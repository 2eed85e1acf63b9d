"""What a cluster says: plain JSON and dumps -> nodes, what is in use, what joins them."""
