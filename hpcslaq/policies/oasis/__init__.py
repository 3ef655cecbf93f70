"""OASiS: online primal-dual admission and elastic schedules of training jobs."""
