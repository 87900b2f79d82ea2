scale=$1
case "$BAI_ARM:$BAI_REPEAT:$2" in
    new:2:* | new:3:* | :1:broken)
        echo "diverged" >&2
        exit 3
        ;;
esac
for step in 1 2 3 4 5; do
    echo "step=$step loss=$((scale * 60 / step))"
    echo "device=a throughput=$((scale * 10 + step))"
    echo "device=b throughput=$((scale * 20 + step))"
    sleep 0.2
done
mkdir -p out
echo "weights of $scale" >out/model.txt
printf 'step,latency\n1,%s\n2,%s\n' "$((scale + 2))" "$((scale + 1))" >out/latency.csv
