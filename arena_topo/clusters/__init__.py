"""The state of a cluster: plain JSON and dumps -> nodes, their use, and the network."""
