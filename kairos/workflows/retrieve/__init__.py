"""Engines that embed and rank, and collections, for the operators of retrieval."""
