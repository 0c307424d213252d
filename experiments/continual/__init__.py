"""Continual learning: what is forgotten, what is kept, and whether a network grows old. Tables E0 to E11."""
