"""This site's links: which it wants to have, which it was told to make and measure, and what is sent over them."""
