"""DeepPlan (Jeong et al., EuroSys 2023): its figures again, one command each."""
