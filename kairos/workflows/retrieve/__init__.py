"""What operators of retrieval ask for: engines that embed and rank, and collections."""
