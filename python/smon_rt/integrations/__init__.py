"""What records by itself: hooks in the frameworks that a job uses. Loads none of them."""
