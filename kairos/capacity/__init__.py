"""Planning of hardware: types, placement and numbers of engines. Pure: numbers in, numbers out."""
