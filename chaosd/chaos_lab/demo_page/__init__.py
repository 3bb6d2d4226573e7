"""The page of `chaosd demo`: who looks at it may kill sites and have others join, and sees at the end what for."""
