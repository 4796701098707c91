"""DeepPlan (Jeong et al., EuroSys 2023): its figures and tables again."""
