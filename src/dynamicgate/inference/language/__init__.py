"""Language models on the CPU: the whole decoder as one native call where it is known, else layer by layer."""
