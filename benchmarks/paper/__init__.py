"""The experiments of Viglas et al. (VLDB 2003) and of later papers, on this engine, in virtual time."""
