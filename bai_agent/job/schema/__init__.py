"""How a table of a descriptor is declared: its fields, their types and checks, and the small languages of its values."""
