"""`foretell simulate` and `foretell capacity`: clusters in virtual time."""
