"""Stages: easy inputs stop early, hard ones open more. What that is worth at equal cost, and on the clock."""
