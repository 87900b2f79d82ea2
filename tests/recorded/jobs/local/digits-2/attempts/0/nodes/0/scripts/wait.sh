echo "step=1 loss=60"
echo "device=a throughput=11"
i=0
while [ $i -lt 600 ]; do sleep 0.5; i=$((i + 1)); done
echo "step=2 loss=30"
