"""Workers: which launcher started them, how they form a group, and what they exchange."""
