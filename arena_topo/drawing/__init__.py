"""Machines and networks drawn: in text for terminals, as SVG for pages."""
