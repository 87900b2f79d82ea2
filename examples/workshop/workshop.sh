#!/bin/sh
# The distributed training workshop for EKS (docs/moving-in.md), without a cluster. It begins with an account that has nothing of
# `bai` in it, trains on up to four machines, and removes everything again.
#
#     examples/workshop/workshop.sh
#
# The script needs the credentials of an administrator and a region (AWS_REGION), and costs some US cents. All resources are named
# `workshop`, and the script has its own configuration, so an existing set-up of `bai` does not change. After a failure, call the
# script again, or only its last `bai` command. Machines end by themselves in any case.
set -eu
cd "$(dirname "$0")/.."
unset BAI_BUCKET BAI_STORE BAI_INSTANCE_PROFILE BAI_SUBNETS BAI_SECURITY_GROUPS
export BAI_CONFIG="$HOME/.config/bai/workshop.toml"
mkdir -p "$(dirname "$BAI_CONFIG")"

# The account: bucket, role, policies, security group. There is no cluster, and no image to build.
bai setup --name workshop --yes

# The data: a job on one machine, whose artifacts the next jobs use.
bai run prepare/benchmark.toml --on ec2

# The training, on two machines.
two=$(bai submit workshop/benchmark.toml)
bai status "$two"
bai logs "$two" --all --follow
bai status "$two" --wait

# The test of the model, on digits that were not used for training.
bai run workshop/evaluate.toml --on ec2

# The same training on four machines, and a comparison of the durations.
four=$(bai submit workshop/benchmark.toml --nodes 4)
bai status "$four" --wait
bai compare "$two" "$four"
bai list

# The clean-up removes everything. It is refused while a machine exists, and those of the last job take up to a minute to end.
for _ in 1 2 3 4 5 6 7 8 9; do
    ! bai setup --name workshop --remove --delete-data --yes || exit 0
    sleep 20
done
exit 1
