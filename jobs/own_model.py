"""A model of one's own: linear regression that outliers do not spoil.

    minimise  1/n sum_i h(y_i - x_i w - b),   h(e) = e^2 / 2         where |e| <= width
                                                     width (|e| - width / 2)  elsewhere

by iteratively reweighted least squares: each pass weights the rows by how far they are from
the present line, sums the normal equations over the chunks, and solves them.
Used by jobs/own_model.toml; docs/models.md explains each part.
"""

import numpy as np

from hpcslaq.train import Convergence, Model, Option, Step, require_regression


class HuberRegression(Model):
    """Linear regression with Huber's loss; the intercept is the last weight."""

    convergence = Convergence.SUPERLINEAR
    options = {
        "width": Option(float, 1.0, "errors beyond count linearly, in the target's units", above=0),
        "l2": Option(float, 1e-6, "penalty l2/2 |w|^2 on the mean loss", at_least=0.0),
    }

    def check_data(self, info):
        require_regression(info, "huber")

    def initial_state(self, data, rng):
        return {"weights": np.zeros(data.num_features + 1)}

    def statistics(self, state, chunk, draw):
        width = self.settings["width"]
        X = np.column_stack([chunk.X, np.ones(chunk.num_rows)])
        errors = chunk.y - X @ state["weights"]
        sizes = np.maximum(np.abs(errors), 1e-12)
        trust = np.minimum(1.0, width / sizes)
        weighted = X * trust[:, None]
        # h(e) with s = min(|e|, width) is s (|e| - s / 2).
        near = np.minimum(sizes, width)
        return {
            "matrix": weighted.T @ X,
            "vector": weighted.T @ chunk.y,
            "loss": float(near @ (sizes - 0.5 * near)),
        }

    def update(self, state, totals, context):
        n, old = context.info.num_rows, state["weights"]
        penalty = np.full(old.size, self.settings["l2"])
        penalty[-1] = 0.0
        loss = totals["loss"] / n + 0.5 * penalty @ (old * old)
        matrix = totals["matrix"] / n + np.diag(penalty)
        new = np.linalg.solve(matrix, totals["vector"] / n)
        is_converged = float(np.abs(new - old).max()) <= 1e-9 * float(np.abs(new).max())
        state["weights"] = new
        return Step(float(loss), is_converged=is_converged)

    def predict(self, state, X):
        return X @ state["weights"][:-1] + state["weights"][-1]

    def evaluate(self, state, batch):
        errors = batch.y - self.predict(state, batch.X)
        return {
            "mean_absolute_error": float(np.abs(errors).mean()),
            "r2": 1.0 - float(errors @ errors) / float(np.sum((batch.y - batch.y.mean()) ** 2)),
        }
