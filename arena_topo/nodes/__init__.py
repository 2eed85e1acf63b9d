"""Nodes, their machines and the network between them: shown, described, published."""
