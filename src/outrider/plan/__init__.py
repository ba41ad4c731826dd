"""`outrider plan`: what a pair of models needs and gives on a machine, before anything is loaded."""
