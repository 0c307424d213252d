"""Recipes for the tables of the paper: one file for each section, `published` and `common` are what they share."""
