from .k8s import K8sJob as K8sJob
from .k8s import yaml_text as yaml_text
from .yarn import YarnService as YarnService
