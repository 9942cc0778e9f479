"""Which hardware to buy, what runs where, and how many: pure, numbers in and numbers out."""
