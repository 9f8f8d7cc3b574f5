"""Why a run is slow: experiments on the user's own loop, causes judged by what they showed, a verdict."""
