"""How a gang starts: planned, recorded, resumed in its turn, or rolled back."""
