"""Virtual time: the same coordinator and policies, driven by recorded or modelled jobs."""
