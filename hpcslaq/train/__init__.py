"""Models in summation form and the loop that trains them, the same bits on any allocation."""
