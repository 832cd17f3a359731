"""A plan as something to take away: a serve command, a report, alert rules, a dashboard."""
