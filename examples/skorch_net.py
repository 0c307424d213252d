"""A gated model in skorch: a scikit-learn estimator with a budget, in a pipeline and a grid search. Needs skorch."""

import math

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

import dynamicgate as dg


class GatedNetClassifier(NeuralNetClassifier):
    """`NeuralNetClassifier` for a module with gates; macs: what they may execute, relative to dense."""

    def __init__(self, module, *args, macs=0.5, criterion=nn.CrossEntropyLoss, **kwargs):
        """As NeuralNetClassifier."""
        super().__init__(module, *args, criterion=criterion, **kwargs)
        self.macs = macs

    def on_train_begin(self, net, X=None, y=None, **kwargs):
        """Start the budget."""
        super().on_train_begin(net, X=X, y=y, **kwargs)
        rows = len(X) if self.train_split is None else len(self.get_split_datasets(X, y)[0])
        self.budget_, self.step_ = dg.Budget(target=self.macs), 0
        self.steps_ = self.max_epochs * math.ceil(rows / self.batch_size)

    def train_step_single(self, batch, **fit_params):
        """Before the forward pass set the gates for this moment."""
        self.budget_.apply_(self.module_, self.step_ / self.steps_)
        found = super().train_step_single(batch, **fit_params)
        self.step_ += 1
        return found

    def infer(self, x, **fit_params):
        """Record what the gates decide."""
        if not self.module_.training:
            return super().infer(x, **fit_params)
        with dg.usage(self.module_) as self.used_:
            return super().infer(x, **fit_params)

    def get_loss(self, y_pred, y_true, X=None, training=False):
        """Add the penalty for what was open."""
        loss = super().get_loss(y_pred, y_true, X=X, training=training)
        return loss + self.budget_.step(self.used_, self.step_ / self.steps_) if training else loss

    def on_train_end(self, net, X=None, y=None, **kwargs):
        """Meet the budget exactly."""
        super().on_train_end(net, X=X, y=y, **kwargs)
        self.budget_.calibrate_(self.module_, torch.as_tensor(X).to(self.device))


class GatedMLP(nn.Sequential):
    """What skorch builds anew for every fit."""

    def __init__(self, hidden=64):
        """With gates on the hidden layer."""
        super().__init__(nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        dg.gate_(self, dg.GateConfig(block=8))


torch.manual_seed(0)
random = np.random.default_rng(0)
x = random.normal(size=(1500, 16)).astype(np.float32)
y = (x[:, :4] @ random.normal(size=(4, 3))).argmax(1)

net = GatedNetClassifier(GatedMLP, macs=0.5, max_epochs=15, lr=0.01, optimizer=torch.optim.AdamW, verbose=0)
pipeline = make_pipeline(StandardScaler(), net)
search = GridSearchCV(pipeline, {"gatednetclassifier__module__hidden": [32, 64]}, cv=3).fit(x[:1000], y[:1000])
best = search.best_estimator_
print(f"{search.best_params_}, test accuracy {search.score(x[1000:], y[1000:]):.3f}")
module = best.named_steps["gatednetclassifier"].module_
scaled = torch.as_tensor(best.named_steps["standardscaler"].transform(x[1000:]))
print(dg.measure(module, (scaled, torch.as_tensor(y[1000:]))))
