"""A budget as a parameter of a scikit-learn estimator: a search over it in a pipeline, on a table with missing values.

Needs the extras sklearn and data.
"""

import io

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from dynamicgate.sklearn import DynamicGateClassifier

# A CSV file such as a clinic has: numbers, text, and holes.
rng = np.random.default_rng(0)
rows = 1200
age, pressure, dose = rng.normal(50, 12, rows), rng.normal(125, 15, rows), rng.exponential(20, rows)
site = rng.choice(["Kyoto", "Lima", "Oslo"], rows)
risk = (age - 50) / 12 + (pressure - 125) / 15 - dose / 20 + (site == "Lima") + 0.3 * rng.normal(size=rows)
table = pd.DataFrame({"age": age, "pressure": pressure, "dose": dose})
table = table.mask(rng.random(table.shape) < 0.05).assign(site=site)
table["outcome"] = np.where(risk > 0.5, "high", np.where(risk > -0.8, "mid", "low"))
csv = io.StringIO(table.to_csv(index=False))

table = pd.read_csv(csv)
train, test = train_test_split(table, test_size=0.25, random_state=0)
columns = make_column_transformer(
    (SimpleImputer(add_indicator=True), make_column_selector(dtype_include="number")),
    (OneHotEncoder(handle_unknown="ignore"), ["site"]),
)
pipeline = make_pipeline(columns, DynamicGateClassifier(hidden=(64, 64), epochs=20, random_state=0))
search = GridSearchCV(pipeline, {"dynamicgateclassifier__macs": [0.05, 0.2, 1.0]}, cv=3)
search.fit(train.drop(columns="outcome"), train["outcome"])

found = pd.DataFrame(search.cv_results_)
print(found[["param_dynamicgateclassifier__macs", "mean_test_score"]].to_string(index=False))
best = search.best_estimator_[-1]
accuracy = search.score(test.drop(columns="outcome"), test["outcome"])
print(f"test accuracy {accuracy:.3f} at {best.executed_macs_:,.0f} of {best.dense_macs_:,.0f} MACs per row")
