//! Names of queues as other services know them: `arn:aws:sqs:<region>:<account>:<name>`.

use super::names::is_name;

/// Region and account of the caller's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arns {
    region: String,
    account: String,
}

impl Arns {
    pub fn new(region: &str, account: String) -> Self {
        Self { region: region.to_owned(), account }
    }

    pub fn arn(&self, name: &str) -> String {
        format!("arn:aws:sqs:{}:{}:{name}", self.region, self.account)
    }

    /// The name of the caller's own queue; None for everything else.
    pub fn name<'a>(&self, arn: &'a str) -> Option<&'a str> {
        let name = arn.rsplit(':').next()?;
        (is_name(name) && self.arn(name) == arn).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arn_is_one_of_the_callers_own_queues_or_none() {
        let arns = Arns::new("us-east-1", "000000000000".to_owned());
        assert_eq!(arns.arn("jobs"), "arn:aws:sqs:us-east-1:000000000000:jobs");
        assert_eq!(arns.name("arn:aws:sqs:us-east-1:000000000000:jobs"), Some("jobs"));
        for other in [
            "",
            "jobs",
            "arn:aws:sqs:eu-west-1:000000000000:jobs",
            "arn:aws:sqs:us-east-1:123456789012:jobs",
            "arn:aws:sns:us-east-1:000000000000:jobs",
            "arn:aws:sqs:us-east-1:000000000000:",
            "arn:aws:sqs:us-east-1:000000000000:a b",
            "ARN:aws:sqs:us-east-1:000000000000:jobs",
        ] {
            assert_eq!(arns.name(other), None, "{other}");
        }
    }
}
