"""The engines behind Kairos: which there are, what they say of themselves, how well they are."""
