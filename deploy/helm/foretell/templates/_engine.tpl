{{/* The pod of an engine: (dict "root" $ "model" . "component" "engine" "options" .); of an engine on several nodes
     that of the first, and with "worker" true that of the others. */}}
{{- define "foretell.engine.pod" -}}
{{- $root := .root -}}
{{- $model := .model -}}
{{- $vllm := eq ($model.kind | default "vllm") "vllm" -}}
{{- $several := gt ($model.nodes | default 1 | int) 1 -}}
{{- $cache := $model.cache | default dict -}}
{{- $drain := include "foretell.engine.drain" . | int -}}
metadata:
  {{- include "foretell.pod.metadata" . | nindent 2 }}
spec:
  {{- include "foretell.pod" . | nindent 2 }}
  # As long as requests get to end; then vLLM aborts them, and schedulers go on elsewhere.
  terminationGracePeriodSeconds: {{ add $drain 30 }}
  {{- if or (not .worker) $model.initContainers }}
  initContainers:
    {{- with $model.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if not .worker }}
    # A sidecar: it is there before its engine, and until after its end.
    - {{- include "foretell.container" (dict "root" $root "service" "predictor" "resources" $root.Values.predictor.resources) | nindent 6 }}
      restartPolicy: Always
      env:
        - {name: FORETELL_PREDICTOR_CLUSTER, value: /etc/foretell/cluster/cluster.yaml}
        - {name: FORETELL_PREDICTOR_LISTEN, value: '0.0.0.0:50051'}
        - name: FORETELL_PREDICTOR_NAME
          valueFrom:
            fieldRef: {fieldPath: metadata.name}
        {{- with $root.Values.predictor.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: grpc, containerPort: 50051}
        - {name: frames, containerPort: 51051}
        - {name: metrics, containerPort: 9100}
      startupProbe:
        httpGet: {path: /metrics, port: metrics}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /metrics, port: metrics}
        periodSeconds: 10
        timeoutSeconds: 5
      volumeMounts:
        {{- include "foretell.mounts" $root | nindent 8 }}
    {{- end }}
  {{- end }}
  containers:
    - name: engine
      image: {{ include "foretell.engine.image" . }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- if $vllm }}
      args:
        - {{ $model.path | default $model.model | quote }}
        - --served-model-name
        - {{ $model.model | quote }}
        {{- if $model.offline }}
        - --scheduler-cls=foretell.services.backend.vllm.cosched.scheduler.CoScheduler
        {{- end }}
        {{- if gt ($model.gpus | default 1 | int) 1 }}
        - --tensor-parallel-size={{ $model.gpus }}
        {{- end }}
        {{- if $several }}
        - --distributed-executor-backend=mp
        - --nnodes={{ $model.nodes }}
        - --master-addr=$(LWS_LEADER_ADDRESS)
        - --node-rank={{ ternary "$(LWS_WORKER_INDEX)" "0" (.worker | default false) }}
        {{- if .worker }}
        - --headless
        {{- end }}
        {{- end }}
        {{- range include "foretell.engine.args" . | fromJsonArray }}
        - {{ . | quote }}
        {{- end }}
      {{- else }}
      command: [python, -m, foretell.services.backend.emulator]
      {{- end }}
      env:
        - name: POD_NAME
          valueFrom:
            fieldRef: {fieldPath: metadata.name}
        {{- if $vllm }}
        - {name: FORETELL_PLUGIN_INSTANCE_ID, value: $(POD_NAME)}
        - {name: FORETELL_PLUGIN_SNAPSHOT_ENDPOINT, value: 'shm:///run/foretell/$(POD_NAME).snapshots'}
        {{- with ternary nil $root.Values.secrets.engineApiKey (.worker | default false) }}
        {{- include "foretell.secret" (dict "name" "VLLM_API_KEY" "secret" .) | nindent 8 }}
        {{- end }}
        {{- with $root.Values.secrets.huggingFaceToken }}
        {{- include "foretell.secret" (dict "name" "HF_TOKEN" "secret" .) | nindent 8 }}
        {{- end }}
        {{- else }}
        - {name: FORETELL_EMULATOR_NAME, value: $(POD_NAME)}
        - {name: FORETELL_EMULATOR_CLUSTER, value: /etc/foretell/cluster/cluster.yaml}
        {{- end }}
        {{- with $model.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if not .worker }}
      ports:
        - {name: http, containerPort: 8000}
      # Loading weights takes minutes, downloading them more.
      startupProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: {{ divf ($model.startSeconds | default 1800) 10 | ceil | int }}
      readinessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
      livenessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      {{- end }}
      securityContext:
        {{- include "foretell.container.security" $root | nindent 8 }}
      {{- $gpus := dict }}
      {{- if $vllm }}{{ $gpus = dict ($model.gpuResource | default "nvidia.com/gpu") ($model.gpus | default 1 | toString) }}{{ end }}
      {{- $asked := $model.resources | default dict }}
      resources:
        requests:
          {{- merge (dict) $gpus ($asked.requests | default (dict "cpu" (ternary "4" "500m" $vllm) "memory" (ternary "16Gi" "512Mi" $vllm))) | toYaml | nindent 10 }}
        {{- with merge (dict) $gpus ($asked.limits | default dict) }}
        limits:
          {{- toYaml . | nindent 10 }}
        {{- end }}
      volumeMounts:
        {{- if $vllm }}
        - {name: run, mountPath: /run/foretell}
        - {name: tmp-of-engine, mountPath: /tmp}
        - {name: home, mountPath: /home/foretell}
        - {name: models, mountPath: /home/foretell/.cache/huggingface}
        - {name: shm, mountPath: /dev/shm}
        {{- with $model.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- else }}
        {{- include "foretell.mounts" $root | nindent 8 }}
        {{- end }}
  volumes:
    {{- if .worker }}
    - name: run
      emptyDir: {medium: Memory, sizeLimit: 64Mi}
    {{- else }}
    {{- include "foretell.volumes" (dict "root" $root "keys" false) | nindent 4 }}
    {{- end }}
    {{- if $vllm }}
    - name: tmp-of-engine
      emptyDir: {}
    - name: home
      emptyDir: {}
    # vLLM's processes talk through it, and NCCL.
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ $model.sharedMemory | default "8Gi" }}
    {{- if $cache.claimName }}
    - name: models
      persistentVolumeClaim:
        claimName: {{ $cache.claimName }}
    {{- else if not $cache.size }}
    - name: models
      emptyDir: {}
    {{- end }}
    {{- with $model.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- end }}
{{- end }}

{{- define "foretell.engine.claims" -}}
{{- if and .size (not .claimName) -}}
volumeClaimTemplates:
  - metadata:
      name: models
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .storageClassName }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests:
          storage: {{ .size }}
{{- end }}
{{- end }}
