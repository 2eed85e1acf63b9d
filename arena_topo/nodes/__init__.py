"""Nodes, their machines and the network between them: the commands that show and publish them."""
