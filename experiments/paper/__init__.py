"""The tables of the paper, run again: one file for each section; `published` and `common` hold what sections share."""
