"""A cloud on paper: real behaviour, scripted incidents, no machine and no bill."""
