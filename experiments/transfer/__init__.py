"""Every method with its defaults and a budget, on data that nobody tuned on."""
