"""The experiments of Viglas et al. (VLDB 2003) and a PermJoin comparison, on this engine, in virtual time."""
