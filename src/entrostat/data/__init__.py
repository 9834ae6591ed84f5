"""From a task to rewards: prompts, generation of one turn or several, scoring."""
