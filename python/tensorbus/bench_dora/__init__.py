"""`tensorbus bench dora`: stock dora against Tensorbus, side by side in one run."""
